# coding: utf-7-not
print('x')
