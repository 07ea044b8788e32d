# HTML and XML: XPath, a table of a page, XSLT, a schema.
import io
import pandas as pd
from lxml import etree, html

page = html.fromstring('''<html><body><h1>Prices</h1><table id=t><tr><th>item<th>price</tr>
<tr><td>tea &amp; milk</td><td>2.50</td></tr><tr><td>ca\u00fce</td><td>3</td></tr></table><a href="/x">x</a></body></html>''')
page.make_links_absolute('https://example.com/a/')
rows = [[td.text_content() for td in tr] for tr in page.xpath('//table[@id="t"]/tr')]
df = pd.DataFrame(rows[1:], columns=rows[0]).astype({'price': float})
print(df.to_csv(index=False), page.xpath('string(//a/@href)'), sep='')
doc = etree.fromstring(b'<r xmlns:n="urn:n"><n:v at="1">a</n:v><n:v at="2">b</n:v></r>')
print(doc.xpath('//n:v[@at>1]/text()', namespaces={'n': 'urn:n'}))
style = etree.XSLT(etree.XML('''<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform"><xsl:output method="text"/>
<xsl:template match="/"><xsl:for-each select="//*[@at]"><xsl:value-of select="concat(@at, '=', ., ';')"/></xsl:for-each></xsl:template></xsl:stylesheet>'''))
print(style(doc))
try:
    etree.fromstring('<a><b></a>')
except etree.XMLSyntaxError as e:
    print(e.lineno, e.position)
print(pd.read_xml(io.BytesIO(b'<d><row><a>1</a><b>x</b></row><row><a>2</a><b>y</b></row></d>')).to_dict('list'))
