"""A block's payload to messages, and the order in which producers send them."""
