print("hello", 6 * 7)
