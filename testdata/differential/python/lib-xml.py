import xml.dom.minidom, xml.etree.ElementTree as E, html, html.parser
t = E.fromstring('<a x="1"><b>text &amp; more</b><b/>tail</a>')
print([b.text for b in t.iter('b')], E.tostring(t), xml.dom.minidom.parseString('<a><b/></a>').toprettyxml(' '), html.escape('<"&\''), html.unescape('&eacute;&#x1F600;'))
E.indent(t); E.dump(t); print(t.find("./b[2]").tail)
E.fromstring('<a><b></a>')
