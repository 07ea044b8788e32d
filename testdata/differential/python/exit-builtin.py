try:
    exit(3)
finally:
    print('finally')
