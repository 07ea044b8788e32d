class Thing:
    blech = 1
Thing().bleck
