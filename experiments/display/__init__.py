"""How things look to people: tables of text, values, colours."""
