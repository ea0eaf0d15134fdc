"""Files that a user writes or keeps, and interruptions while they are written."""
