"""A server for trained models: OpenAI's API, web pages and Prometheus metrics."""
