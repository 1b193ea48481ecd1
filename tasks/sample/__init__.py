"""A sample corpus and instruction records, harvested from what is installed on the machine itself."""
