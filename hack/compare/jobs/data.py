import pandas
frame = pandas.DataFrame({"day": [i % 7 for i in range(1000)], "sum": [i * 0.5 for i in range(1000)]})
groups = frame.groupby("day")["sum"].agg(["mean", "max", "count"])
print("rows", int(groups["count"].sum()), "groups", len(groups))
