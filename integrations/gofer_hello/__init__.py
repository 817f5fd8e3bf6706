"""The example integration."""
