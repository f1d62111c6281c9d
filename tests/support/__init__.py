"""What the tests of the store share: a clock to move, stores to open, one way to call both twins of a verb."""
