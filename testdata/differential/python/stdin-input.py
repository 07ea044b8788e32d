print(repr(input()))
print(repr(input('prompt: ')))
print(repr(input()))
print(input())
