import collections
try:
    collections.OrderedDic
except AttributeError as e:
    print(e)
colour = 1
print(color)
