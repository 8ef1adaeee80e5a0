"""A server for one model: OpenAI's completions, pages to look at, metrics for a monitor."""
