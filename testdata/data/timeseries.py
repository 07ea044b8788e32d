# Time series: resample, roll, time zones; two figures that nobody saves.
import numpy as np
import pandas as pd
import matplotlib.pyplot as plt

index = pd.date_range('2026-01-01', periods=240, freq='h', tz='Europe/Berlin')
series = pd.Series(np.sin(np.arange(240) * 2 * np.pi / 24), index)
daily = series.resample('D').agg(['min', 'max', 'mean'])
print(daily.round(3).head(2).to_string())
print(series.rolling(24).mean().dropna().abs().max() < 1e-12, series.index.tz_convert('UTC')[0])
print(pd.Timestamp('2026-03-29 01:59', tz='Europe/Berlin') + pd.Timedelta('1min'), (series.shift(1) - series).count())
fig, axes = plt.subplots(2, 1, sharex=True)
series.plot(ax=axes[0])
daily.plot(ax=axes[1])
plt.figure()
plt.hist(series, bins=20)
plt.title(r'$\sin(2\pi t / 24)$')
