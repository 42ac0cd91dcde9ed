"""The tables of known mistakes that several exercises share."""
