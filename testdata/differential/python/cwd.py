import os
print(os.getcwd() == os.path.dirname(__file__), os.listdir('.'))
os.chdir('/')
print(os.getcwd(), os.path.abspath('x'))
