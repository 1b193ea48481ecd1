"""Which of several answers people prefer: records, pairs made of them, and how far those people agree."""
