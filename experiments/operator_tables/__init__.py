"""Step times from tables of measured operators that other projects publish, kept on disk once they are made."""
