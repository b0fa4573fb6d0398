// Curves as lines of text: braille dots, two by four per character, or ASCII, with axes whose ticks
// are round numbers.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_CURVE_PLOT_H_
#define NIBBLE_CLIENT_REMOTE_CURVE_PLOT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "client/remote/styled_text.h"

namespace nibble {

// The range of values at x; a curve connects its points.
struct PlotPoint {
  double x = 0;
  double least = 0;
  double most = 0;
};

struct PlotCurve {
  std::vector<PlotPoint> points;  // by x, finite
  Ink ink = Ink::kPlain;
  char ascii = '*';     // its dots without UTF-8
  bool dashed = false;  // so that it differs from another curve without colours
};

struct PlotArea {
  size_t columns = 60;  // inside of the axes
  size_t rows = 8;      // inside of the axes
  size_t margin = 10;   // columns to the left of the area, for the y axis and its labels
  double x_from = 0;
  double x_to = 1;  // above x_from
  double y_from = 0;
  double y_to = 1;  // above y_from, which is positive if `log`
  bool log = false;
  bool utf8 = true;
  std::string x_name = "step";  // in the margin, beside the labels of the x axis
};

// Round numbers in [from, to], 1, 2 or 5 times a power of ten apart, at most `most`. Empty if the
// range is empty.
std::vector<double> NiceTicks(double from, double to, size_t most);
// As above; on a logarithmic scale 1, 2 and 5 times powers of ten if there are at least three.
std::vector<double> NiceLogTicks(double from, double to, size_t most);

// The column of the area where x lies; the first or the last one for x beyond the area.
size_t PlotColumn(const PlotArea& area, double x);

// area.rows lines, a line with the x axis, and one with its labels, each of at most area.margin +
// area.columns columns. Later curves are drawn over earlier ones; what is beyond the area is left
// out.
std::vector<StyledLine> DrawPlot(const std::vector<PlotCurve>& curves, const PlotArea& area);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_CURVE_PLOT_H_
