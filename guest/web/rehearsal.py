page = ('<html><head><title>t</title></head><body><article><h1>a</h1><p>b <a href="/c">c</a></p>'
        '<table><tr><th>d</th></tr><tr><td>e</td></tr></table></article></body></html>')
readability.Document(page).summary()
html2text.HTML2Text().handle(page)
