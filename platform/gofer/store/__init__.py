"""Tables, the two databases that hold them, and the migrations between versions."""
