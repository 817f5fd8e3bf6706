"""The job engine: durable promises, leases with a fence, and the workers that keep them."""
