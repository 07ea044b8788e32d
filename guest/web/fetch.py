# Fetches a page, and prints it as Markdown, text, HTML or base64. The argument is a plan, and the output a page,
# both in JSON (internal/web). The page may be hostile, so everything is limited in size and time, and the host
# checks the output.
import base64
import codecs
import io
import json
import re
import ssl
import sys
import time
import zlib
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

import html2text
import lxml.etree
import lxml.html
import readability

AGENT = 'Mozilla/5.0 (compatible; unitask web fetch)'
SECONDS = 40             # for all requests; a page that takes longer is cut
PATIENCE = 20            # seconds without a byte
MOST_HTML = 2 << 20      # bytes of a page that is converted
MOST_PDF = 16 << 20
MOST_PAGES = 200         # of a PDF
MOST_LINKS = 100
MOST_TEXT = 300          # characters of a title, or of a link's text
MOST_URL = 2048
LEAST_ARTICLE = 250      # characters of an article that can be the page's content

ACCEPT = {
    'markdown': 'text/markdown, text/html;q=0.9, application/xhtml+xml;q=0.9, application/pdf;q=0.8, text/*;q=0.7, */*;q=0.1',
    'text': 'text/plain, text/html;q=0.9, application/xhtml+xml;q=0.9, application/pdf;q=0.8, text/*;q=0.7, */*;q=0.1',
    'html': 'text/html, application/xhtml+xml, text/*;q=0.7, */*;q=0.1',
    'raw': '*/*',
}
TEXTS = ('text/', 'application/json', 'application/xml', 'application/javascript', 'application/yaml', 'application/toml')


class Failure(Exception):
    """The reason why there is no page, for the caller."""


def one_line(text, most=MOST_TEXT):
    return ' '.join((text or '').split())[:most]


# The request


def ascii_url(url):
    """Return the parts of a URL, its path and query in ASCII."""
    parts = urlsplit(url)
    path = quote(parts.path or '/', safe="/%:@!$&'()*+,;=~-._")
    query = quote(parts.query, safe="/?%:@!$&'()*+,;=~-._[]")
    return parts, urlunsplit(('', '', path, query, ''))


def ask(url, accept):
    """Send one request, and return its response."""
    parts, target = ascii_url(url)
    if parts.scheme == 'https':
        conn = HTTPSConnection(parts.hostname, parts.port, timeout=PATIENCE, context=ssl.create_default_context())
    else:
        conn = HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE)
    try:
        conn.request('GET', target, headers={'User-Agent': AGENT, 'Accept': accept, 'Accept-Encoding': 'gzip, deflate',
                                             'Accept-Language': 'en, *;q=0.5', 'Connection': 'close'})
        return conn.getresponse()
    except ssl.SSLCertVerificationError as e:
        raise Failure(f'{parts.hostname} has a certificate that can\'t be trusted: {e.verify_message}')
    except (OSError, HTTPException, ValueError) as e:
        raise Failure(f'connect to {parts.hostname}: {e or type(e).__name__}')


def origin(url):
    """Return a URL's host and port, as grants compare them. The port is 0 for 80 and 443."""
    parts = urlsplit(url)
    port = parts.port or {'http': 80, 'https': 443}.get(parts.scheme)
    return parts.hostname, 0 if port in (80, 443) else port


def follow(plan):
    """Follow redirects. Return the last URL, their number, and the response, None if the URL is on another host."""
    url, hops = plan['url'], 0
    while True:
        response = ask(url, ACCEPT[plan['as']])
        where = response.getheader('Location')
        if response.status not in (301, 302, 303, 307, 308) or not where:
            return url, hops, response
        hops += 1
        if hops > plan['redirects']:
            raise Failure('there are too many redirects')
        before, url = url, urljoin(url, where.strip())
        try:
            same = origin(url) == origin(before) and urlsplit(url).scheme in ('http', 'https')
        except ValueError:
            raise Failure('it redirects to something that is no URL')
        response.close()
        if not same:
            return url, hops, None


def body(response, most, until):
    """Return at most that many bytes of the response's body, decompressed, and whether there are more."""
    encoding = (response.getheader('Content-Encoding') or 'identity').strip().lower()
    if encoding not in ('identity', 'gzip', 'x-gzip', 'deflate'):
        raise Failure(f'its Content-Encoding is {one_line(encoding, 40)}, which was not asked for')
    unpacker = None if encoding == 'identity' else zlib.decompressobj(zlib.MAX_WBITS | 32)
    out, more = io.BytesIO(), False
    try:
        while True:
            packed = response.read1(64 << 10)
            if not packed:
                break
            if time.monotonic() > until:
                more = True
                break
            data = packed
            if unpacker:
                try:
                    data = unpacker.decompress(packed, most + 1 - out.tell())
                except zlib.error:
                    if encoding != 'deflate' or out.tell():
                        raise
                    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)  # many servers send deflate without zlib's header
                    data = unpacker.decompress(packed, most + 1 - out.tell())
            out.write(data[:most + 1 - out.tell()])
            if out.tell() > most:
                more = True
                break
    except (OSError, HTTPException, zlib.error) as e:
        if not out.tell():
            raise Failure(f'read the page: {e or type(e).__name__}')
        more = True
    return out.getvalue()[:most], more


# Text

# Names of encodings that mean another encoding on the web, as in browsers.
MEANT = {'iso8859-1': 'cp1252', 'ascii': 'cp1252', 'gb2312': 'gb18030', 'gbk': 'gb18030', 'shift_jis': 'cp932',
         'euc_kr': 'cp949', 'iso8859-9': 'cp1254'}
KNOWN = re.compile(r'utf-(8|16|16-le|16-be|32)|iso8859-\d+|cp\d+|koi8-[rtu]|mac-roman|gb\w*|big5\w*|shift_jis\w*|euc_\w+|iso2022_\w+')
META = re.compile(rb'''<meta[^>]{0,300}?charset\s*=\s*["']?\s*([\w-]{1,40})|<\?xml[^>]{0,100}?encoding\s*=\s*["']([\w-]{1,40})''', re.I)


def codec(name):
    """Return Python's name of a character encoding, '' if browsers know no such encoding."""
    try:
        name = codecs.lookup(name.strip().strip('"\'')).name
    except (LookupError, ValueError):
        return ''
    name = MEANT.get(name, name)
    return name if KNOWN.fullmatch(name) else ''


def decode(data, charset, cut):
    """Return a page's text. The page may name a wrong encoding, or none."""
    for mark, name in ((codecs.BOM_UTF8, 'utf-8'), (codecs.BOM_UTF16_LE, 'utf-16-le'), (codecs.BOM_UTF16_BE, 'utf-16-be')):
        if data.startswith(mark):
            return data[len(mark):].decode(name, 'replace')
    found = META.search(data, 0, 4096)
    said = [codec(charset or ''), codec((found[1] or found[2]).decode()) if found else '', 'utf-8']
    for name in filter(None, said):
        try:
            return codecs.getincrementaldecoder(name)('strict').decode(data, not cut)
        except UnicodeDecodeError:
            pass
    import chardet
    name = codec(chardet.detect(data[:32 << 10])['encoding'] or '') or 'cp1252'
    return data.decode(name, 'replace')


def cut_text(text, most):
    """Return the characters of a text that fit into that many bytes, and whether that cut the text."""
    data = text.encode('utf-8', 'replace')
    if len(data) <= most:
        return data.decode(), False
    return data[:most].decode('utf-8', 'ignore'), True


# HTML

GONE = ('script', 'style', 'noscript', 'template', 'iframe', 'svg', 'math', 'canvas', 'object', 'embed', 'form', 'input',
        'button', 'select', 'textarea', 'link', 'meta')
AROUND = ('nav', 'header', 'footer', 'aside', 'dialog')
BLOCKS = frozenset('address article aside blockquote body br dd div dl dt figcaption figure footer h1 h2 h3 h4 h5 h6 header hr li '
                   'main nav ol p pre section table tr ul'.split())


IN_HEAD = ('title', 'meta', 'link', 'script', 'style', 'base', 'noscript', 'template')
UNPRINTED = re.compile('[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]')


def parse(text):
    """Return a page's tree. The parser cuts a tree that is too deep."""
    text = UNPRINTED.sub('', text)  # after such a character the parser would assume another encoding
    parser = lxml.html.HTMLParser(encoding='utf-8', remove_comments=True, remove_pis=True, recover=True, huge_tree=False)
    tree = None
    if text.strip():
        tree = lxml.html.document_fromstring(text.encode('utf-8', 'replace'), parser=parser, ensure_head_body=True)
    if tree is None:
        return lxml.html.document_fromstring('<html><head></head><body></body></html>')
    head, body = tree.find('head'), tree.find('body')
    strays = [node for node in head if node.tag not in IN_HEAD]  # the parser puts unknown tags into the head
    for place, node in enumerate(strays):
        head.remove(node)
        body.insert(place, node)
    return tree


def drop(tree, tags):
    for node in list(tree.iter(*tags)):
        if node.getparent() is not None:
            node.drop_tree()


UNSEEN = ('.//*[@hidden or @aria-hidden="true" or contains(translate(@style, " ", ""), "display:none")'
          ' or @role="navigation" or @role="contentinfo" or @role="dialog"]')


def length(tree):
    return len(' '.join(tree.text_content().split())) if tree is not None else 0


def content(tree):
    """Return the part of a page that people read.

    It is the page's main element, the article that readability finds, or the page without navigation and the like.
    """
    drop(tree, GONE)
    for node in tree.xpath(UNSEEN):
        if node.tag not in ('html', 'body') and node.getparent() is not None:
            node.drop_tree()
    whole = tree.find('body')
    for path in ('.//main', './/*[@role="main"]', './/article'):
        found = tree.xpath(path)
        if len(found) == 1 and length(found[0]) >= LEAST_ARTICLE:
            drop(found[0], ('nav', 'aside', 'dialog', 'footer'))
            return found[0]
    try:
        summary = readability.Document(lxml.etree.tostring(tree, encoding='unicode', method='html')).summary(html_partial=True)
        article = parse(summary).find('body')
    except (readability.readability.Unparseable, lxml.etree.LxmlError, RecursionError, ValueError):
        article = None
    drop(whole, AROUND)
    if length(article) >= max(LEAST_ARTICLE, length(whole) * 2 // 3):
        return article
    return whole


def mend(part, base):
    """Make a part's links absolute, and remove those that lead nowhere else. Return the links."""
    links, seen = [], set()
    for node in list(part.iter('a')):
        bare = not node.text_content().strip('#\u00b6 \t\n') and node.find('.//img') is None
        if bare and node.getparent() is not None:  # a heading's anchor
            node.drop_tree()
        elif (node.get('href') or '').startswith('#'):
            node.attrib.pop('href')
    for node in list(part.iter('caption', 'figcaption')):
        table = node.getparent()
        node.tag = 'p'
        if table is not None and table.tag == 'table' and table.getparent() is not None:
            node.tail = None
            table.addprevious(node)
    for node in part.iter('a', 'img'):
        key = 'href' if node.tag == 'a' else 'src'
        try:
            url = urljoin(base, (node.get(key) or '').strip()).replace(' ', '%20')
            good = urlsplit(url).scheme in ('http', 'https') and len(url) <= MOST_URL and node.get(key)
        except ValueError:
            good = False
        if not good:
            node.attrib.pop(key, None)
            continue
        node.set(key, url)
        if node.tag == 'a' and url not in seen and len(links) < MOST_LINKS:
            seen.add(url)
            links.append({'url': url, 'text': one_line(node.text_content())})
    return links


AFTER_EMPHASIS = re.compile(r'(?<=\S)(\*\*|_|~~) (?=[,;:)\]])')  # html2text adds this space


def markdown(part):
    to = html2text.HTML2Text(bodywidth=0)
    to.unicode_snob, to.backquote_code_style, to.single_line_break = True, True, False
    to.images_to_alt, to.default_image_alt, to.use_automatic_links = True, '', True
    to.ul_item_mark, to.open_quote, to.close_quote = '-', '"', '"'
    html = lxml.etree.tostring(part, encoding='unicode', method='html', with_tail=False)
    lines, inside = [], False
    for line in map(str.rstrip, to.handle(html).split('\n')):
        if line == '```':  # put empty lines around a block of code, and drop those at its end
            if inside:
                while lines[-1] == '':
                    lines.pop()
            elif lines and lines[-1]:
                lines.append('')
            inside = not inside
        lines.append(line if inside else AFTER_EMPHASIS.sub(r'\1', line))
    return re.sub(r'\n{3,}', '\n\n', '\n'.join(lines)).strip('\n')


def plain(part):
    """Return a part's text, with each block on separate lines."""
    out, depth = [], 0
    for event, node in lxml.etree.iterwalk(part, events=('start', 'end')):
        block, pre = node.tag in BLOCKS, node.tag == 'pre'
        if event == 'start':
            depth += pre
            out += ['\n'] if block else [' '] if node.tag in ('td', 'th') else []
            text = node.text
        else:
            depth -= pre
            out += ['\n'] if block else []
            text = node.tail if node is not part else None
        if text:
            out.append(text if depth else re.sub(r'\s+', ' ', text))
    lines = (re.sub(r'^ | $', '', line.rstrip()) for line in ''.join(out).split('\n'))
    return re.sub(r'\n{3,}', '\n\n', '\n'.join(lines)).strip('\n')


def title_of(tree):
    for path in ('.//head/title', './/title', './/h1'):
        text = one_line(tree.findtext(path) or (tree.find(path).text_content() if tree.find(path) is not None else ''))
        if text:
            return text
    return one_line(''.join(tree.xpath('(.//meta[@property="og:title"]/@content)[1]')))


DATES = ('.//meta[@property="article:published_time"]/@content', './/meta[@name="date" or @name="DC.date"]/@content',
         './/meta[@itemprop="datePublished"]/@content', './/*[@itemprop="datePublished"]/@datetime', './/time/@datetime')
DATE = re.compile(r'\d{4}-\d\d-\d\d')


def date_of(tree):
    """Return the date of a page's publication, if the page says it."""
    for path in DATES:
        for text in tree.xpath(path)[:1]:
            if DATE.match(text.strip()):
                return text.strip()[:10]
    for text in tree.xpath('.//script[@type="application/ld+json"]/text()')[:5]:
        found = re.search(r'"datePublished"\s*:\s*"(\d{4}-\d\d-\d\d)', text[:64 << 10])
        if found:
            return found[1]
    return ''


def from_html(text, plan, page):
    tree = parse(text)
    page['title'], page['date'] = title_of(tree), date_of(tree)
    base = page['url']
    for href in tree.xpath('.//base/@href')[:1]:
        base = urljoin(base, href)
    part = content(tree)
    page['links'] = mend(part, base)
    return markdown(part) if plan['as'] == 'markdown' else plain(part)


def from_pdf(data, page):
    import pypdf
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(''):
            raise Failure('it is a PDF with a password')
        about = reader.metadata or {}
        page['title'] = one_line(str(about.get('/Title') or ''))
        found = re.match(r'D:(\d{4})(\d\d)(\d\d)', str(about.get('/CreationDate') or ''))
        page['date'] = '-'.join(found.groups()) if found else ''
        texts = []
        for number, leaf in enumerate(reader.pages):
            if number >= MOST_PAGES:
                page['truncated'] = True
                break
            texts.append(leaf.extract_text().strip())
    except Failure:
        raise
    except Exception as e:  # the library raises many types of exceptions
        raise Failure(f'it is a PDF that can\'t be read: {one_line(str(e))}')
    return '\n\n'.join(filter(None, texts))


# The page


def convert(data, kind, charset, cut, plan, page):
    """Put a body into a page, in the form that the plan asks for."""
    page['truncated'] = cut
    if plan['as'] == 'raw':
        if cut or len(data) > plan['maxBytes']:
            data, page['truncated'] = data[:plan['maxBytes']], True
        try:
            page['text'] = codecs.getincrementaldecoder('utf-8')('strict').decode(data, not page['truncated'])
        except UnicodeDecodeError:
            page['base64'] = base64.b64encode(data).decode()
        return
    is_html = kind in ('text/html', 'application/xhtml+xml') or not kind and re.match(rb'\s*<(!doctype html|html)', data, re.I)
    if kind == 'application/pdf' or data.startswith(b'%PDF-'):
        if plan['as'] == 'html':
            raise Failure('it is a PDF: as markdown or text gives its text')
        if cut:
            raise Failure(f'it is a PDF of more than {MOST_PDF >> 20} MiB')
        text = from_pdf(data, page)
    elif not is_html and (not kind.startswith(TEXTS) and not kind.endswith(('+json', '+xml')) and kind or b'\0' in data[:1024]
                          and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))):
        raise Failure(f'it is {kind or "binary"}, and no text: as raw gives its bytes')
    else:
        text = decode(data, charset, cut)
        if is_html and plan['as'] != 'html':
            text = from_html(text, plan, page)
        elif is_html:
            page['title'] = title_of(parse(text[:64 << 10]))
    page['text'], short = cut_text(text, plan['maxBytes'])
    page['truncated'] = page['truncated'] or short


def fetch(plan):
    until = time.monotonic() + SECONDS
    url, hops, response = follow(plan)
    if response is None:
        return {'redirect': url[:MOST_URL], 'hops': hops}
    page = {'url': url[:MOST_URL], 'hops': hops, 'status': response.status,
            'type': (response.headers.get_content_type() if response.getheader('Content-Type') else '')[:100]}
    kind = page['type']
    most = MOST_PDF if kind == 'application/pdf' else max(MOST_HTML, plan['maxBytes'])
    if plan['as'] == 'raw':
        most = plan['maxBytes']
    data, cut = body(response, most, until)
    convert(data, kind, response.headers.get_content_charset(), cut, plan, page)
    return page


def answer(plan):
    """Return a page, or the reason why there is none."""
    try:
        return fetch(plan)
    except Failure as e:
        return {'error': str(e)[:500]}
    except Exception as e:
        return {'error': f'the page can\'t be read: {type(e).__name__}: {one_line(str(e))}'}


if __name__ == '__main__':
    json.dump(answer(json.loads(sys.argv[1])), sys.stdout)
