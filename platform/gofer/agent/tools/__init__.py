"""The tools agents have, and the registry and rules that stand between a model and them."""
