"""Pure: values in, values out. No I/O, no clock, no log, no thread; `now` is always an argument."""
