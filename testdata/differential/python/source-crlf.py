print("a")
print("""b
c""".encode())
