"""Many replays that differ in a few options."""
