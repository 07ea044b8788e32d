print('before')
print('\udc80')
print('\ud800')
