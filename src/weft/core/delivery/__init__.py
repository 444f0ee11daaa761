"""The deliveries, one file each; a fifth would be one file more, and one line in chosen.py."""
