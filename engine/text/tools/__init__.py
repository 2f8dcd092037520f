"""Tool calls as models write them: how they are read, asked for and enforced, a file a format."""
