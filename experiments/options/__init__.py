"""What a user can set: one file per subject."""
