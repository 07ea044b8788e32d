import json
print(json.dumps({'b': [1, 2.5, None, True], 'a': 'ünï\u2028', 'n': float('inf'), 'big': 10**30}, sort_keys=True, indent=2))
print(json.loads('{"x": [1e400, -0.0, "\\ud83d\\ude00"]}'))
json.loads('{"x": [1, }')
