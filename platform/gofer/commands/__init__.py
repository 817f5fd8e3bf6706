"""What the platform answers itself: commands, pressed buttons, and whom to let in."""
