"""Who ended the service, whether it was working at that moment, and whether one restart brought about the next. Pure."""
