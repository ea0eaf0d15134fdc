"""How values look to people: cells of tables, colours."""
