"""Draws captions: a plate, and on it lines whose open words are paler."""

from collections.abc import Sequence
from unicodedata import bidirectional

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetricsF,
    QImage,
    QPainter,
    QPen,
    QTextCharFormat,
    QTextLayout,
    QTextOption,
)

from streamer.plugins.overlay.lines import Row
from streamer.plugins.overlay.place import GRIP, Place

OUTLINE_EM = 0.09
STABLE, OPEN = QColor(255, 255, 255), QColor(200, 210, 220)
OUTLINE, FRAME = QColor(0, 0, 0), QColor(111, 211, 163)
CORNER = 10


class Painter:
    """Draws captions of one size. Text of a script that is written from the right stands on the right."""

    def __init__(self, opacity: int) -> None:
        """Prepare to draw on plates that hide this percentage of what is below."""
        self._plate = QColor(0, 0, 0, round(2.55 * opacity))
        self._font = QFont()
        self._font.setWeight(QFont.Weight.Medium)
        # Hinted letters would have other widths at other scales, and lines would break elsewhere.
        self._font.setHintingPreference(QFont.HintingPreference.PreferNoHinting)
        self._room = 0.0

    def prepare(self, place: Place) -> None:
        """Take the size of letters and the width of lines."""
        self._font.setPixelSize(place.size)
        self._metrics = QFontMetricsF(self._font)
        self._room = place.width - 2 * place.padding

    def fits(self, text: str) -> bool:
        """Return whether a text is no wider than a line."""
        return bool(self._metrics.horizontalAdvance(text) <= self._room)

    def picture(self, rows: Sequence[Row], place: Place, scale: int, *, framed: bool = False) -> QImage:
        """Return the captions, with an image's pixels for a logical one; `framed`: with what is dragged."""
        image = QImage(place.width * scale, place.height * scale, QImage.Format.Format_ARGB32_Premultiplied)
        image.setDevicePixelRatio(scale)
        image.fill(Qt.GlobalColor.transparent)
        painter = QPainter(image)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        whole = QRectF(0, 0, place.width, place.height)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(self._plate)
        painter.drawRoundedRect(whole, CORNER, CORNER)
        for i, row in enumerate(rows):
            self._draw_row(painter, row, place.padding, place.padding + i * place.row, place.row)
        if framed:
            self._draw_frame(painter, whole)
        painter.end()
        return image

    def _draw_row(self, painter: QPainter, row: Row, x: int, y: int, height: int) -> None:
        n_stable, n_open = (len(text.encode("utf-16-le")) // 2 for text in (row.stable, row.open))
        pen = QPen(OUTLINE, 2 * OUTLINE_EM * self._font.pixelSize())
        pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
        option = QTextOption(Qt.AlignmentFlag.AlignLeft)
        option.setTextDirection(Qt.LayoutDirection.LayoutDirectionAuto)
        option.setWrapMode(QTextOption.WrapMode.NoWrap)
        for formats in (
            [_format(0, n_stable + n_open, OUTLINE, pen)],
            [_format(0, n_stable, STABLE), _format(n_stable, n_open, OPEN)],
        ):
            layout = QTextLayout(row.stable + row.open, self._font)
            layout.setTextOption(option)
            layout.setFormats(formats)
            layout.beginLayout()
            line = layout.createLine()
            line.setLineWidth(self._room)
            layout.endLayout()
            # Text from the right begins there, or each new word would move the others.
            left = x + (self._room - line.naturalTextWidth() if _is_from_right(row.stable + row.open) else 0)
            layout.draw(painter, QPointF(left, y + (height - line.height()) / 2))

    def _draw_frame(self, painter: QPainter, whole: QRectF) -> None:
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(QPen(FRAME, 3))
        painter.drawRoundedRect(whole.adjusted(1.5, 1.5, -1.5, -1.5), CORNER, CORNER)
        painter.setPen(QPen(FRAME, 5, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap))
        middle, half = whole.center(), GRIP
        for x in (GRIP / 2, whole.width() - GRIP / 2):
            painter.drawLine(QPointF(x, middle.y() - half), QPointF(x, middle.y() + half))
        low = whole.height() - GRIP / 2
        painter.drawLine(QPointF(middle.x() - half, low), QPointF(middle.x() + half, low))


def cursor_picture() -> QImage:
    """Return the pointer for what is dragged: a cross of four arrows."""
    size, head = 33, 4
    middle, end = size / 2, size / 2 - 4
    image = QImage(size, size, QImage.Format.Format_ARGB32_Premultiplied)
    image.fill(Qt.GlobalColor.transparent)
    painter = QPainter(image)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.translate(middle, middle)
    for colour, width in ((OUTLINE, 4.0), (STABLE, 1.6)):
        painter.setPen(QPen(colour, width))
        for _ in range(4):
            painter.drawLine(QPointF(0, 0), QPointF(0, -end))
            for side in (-head, head):
                painter.drawLine(QPointF(0, -end), QPointF(side, head - end))
            painter.rotate(90)
    painter.end()
    return image


def _is_from_right(text: str) -> bool:
    """Return whether the first letter of a text is of a script that is written from the right."""
    kinds = (bidirectional(char) for char in text)
    return next((kind for kind in kinds if kind in ("L", "R", "AL")), "L") != "L"


def _format(start: int, length: int, colour: QColor, outline: QPen | None = None) -> QTextLayout.FormatRange:
    found = QTextLayout.FormatRange()
    found.start, found.length = start, length
    style = QTextCharFormat()
    style.setForeground(colour)
    if outline is not None:
        style.setTextOutline(outline)
    found.format = style
    return found
