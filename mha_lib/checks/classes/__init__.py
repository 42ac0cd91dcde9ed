"""What classes are judged by: the roles of their linears, and laws that hold for every weight."""
