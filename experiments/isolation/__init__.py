"""What response times leak about other tenants' prompts."""
