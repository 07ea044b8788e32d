# Pillow: draw, scale, rotate, convert between formats, and numpy there and back.
import io
import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

im = Image.new('RGB', (200, 100), 'white')
draw = ImageDraw.Draw(im)
draw.ellipse((20, 20, 80, 80), fill=(200, 30, 30))
font = ImageFont.truetype('/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf', 20)
draw.text((100, 40), 'größe', fill='black', font=font)
for kind in ('PNG', 'JPEG', 'GIF', 'WEBP', 'TIFF', 'BMP', 'JPEG2000'):
    out = io.BytesIO()
    im.save(out, kind)
    back = Image.open(io.BytesIO(out.getvalue())).convert('RGB')
    off = np.abs(np.asarray(back, int) - np.asarray(im, int)).mean()
    print(kind, back.size, off < 4)
small = im.resize((50, 25), Image.LANCZOS).rotate(90, expand=True).filter(ImageFilter.BLUR)
small.save('/out/small.png')
a = np.asarray(im.convert('L'))
print(small.size, a.shape, a.dtype, a.max(), Image.fromarray(255 - a).getpixel((0, 0)))
