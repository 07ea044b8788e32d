value = None
result = (1 +
          value[0] +
          2)
