import num2words
print(num2words.num2words(42))
