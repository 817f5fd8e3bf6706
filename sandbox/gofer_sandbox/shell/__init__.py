"""The shell that stays alive: what runs inside, and how one speaks with it from outside."""
