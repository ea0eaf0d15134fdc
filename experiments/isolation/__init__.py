"""What response times tell one tenant of another's prompts."""
