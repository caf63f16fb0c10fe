"""Mathematics of private counts and budgets: numbers and arrays in, numbers and arrays out."""
