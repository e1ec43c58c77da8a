"""What all tests need: an interrupt that interrupts, also where a shell has started them in the background."""

import signal

# Such a shell has SIGINT ignored, which every process that a test starts would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
