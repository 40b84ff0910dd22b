// Walks the schedules of all CTAs of a launch: every K group of every tile is there once, and pieces are numbered as
// those who add them up count them. `schedules.inc` has the launches: kernels' parameters as the host gives them.
#include "standalone/gemm_schedules.cuh"

namespace {

using namespace mktune;

template <int kM, int kN>
struct Tile {
  static constexpr int kBlockM = kM, kBlockN = kN;
};

struct Launch {
  const char* title;
  int rows, n, k, block_m, block_n, split, ctas, most;
  bool pieces;
  std::function<int(int cta)> groups_of;
  std::function<TileCoordinates(int cta, int place)> from;
  std::function<int(const TileCoordinates&)> pieces_of;
};

void walk(const Launch& launch) {
  const auto refuse = [&](const char* what) {
    std::printf("wrong: %s: %s\n", launch.title, what);
    std::exit(1);
  };
  const int block_m = launch.block_m, block_n = launch.block_n, groups = launch.k / 128, split = launch.split;
  const int m_tiles = (launch.rows + block_m - 1) / block_m, n_tiles = (launch.n + block_n - 1) / block_n;
  std::vector<int> seen(m_tiles * n_tiles * groups), parts(m_tiles * n_tiles);  // `parts`: bits of numbers
  int shortest = 1 << 30, longest = 0;
  for (int cta = 0; cta < launch.ctas; ++cta) {
    const int total = launch.groups_of(cta);
    shortest = min(shortest, total);
    longest = std::max(longest, total);
    for (int place = 0; place < total;) {
      const TileCoordinates part = launch.from(cta, place);
      if (part.m_tile < 0 || part.m_tile >= m_tiles || part.n_tile < 0 || part.n_tile >= n_tiles) refuse("no such tile");
      if (part.m != part.m_tile * block_m || part.n != part.n_tile * block_n || part.n_tiles != n_tiles) refuse("a place");
      if (part.groups < 1 || part.first_group < 0 || part.first_group + part.groups > groups) refuse("no such K group");
      if (part.groups > groups / split) refuse("more groups than there are scales");
      const int tile = part.n_tile * m_tiles + part.m_tile;
      for (int g = 0; g < part.groups; ++g) ++seen[tile * groups + part.first_group + g];
      if (part.split < 0 || part.split >= launch.most || parts[tile] >> part.split & 1) refuse("a piece's number");
      parts[tile] |= 1 << part.split;
      for (int later = 1; later < part.groups; ++later) {  // what a loader sees that comes back in the middle
        const TileCoordinates rest = launch.from(cta, place + later);
        if (rest.m != part.m || rest.n != part.n || rest.groups != part.groups - later ||
            rest.first_group != part.first_group + later || rest.split != part.split)
          refuse("the rest of a part");
      }
      place += part.groups;
      if (place > total) refuse("a part beyond the share");
    }
  }
  for (const int times : seen)
    if (times != 1) refuse("a K group is not computed once");
  for (int tile = 0; tile < m_tiles * n_tiles; ++tile) {
    TileCoordinates at{};
    at.m_tile = tile % m_tiles;
    at.n_tile = tile / m_tiles;
    const int count = launch.pieces_of(at);
    if (count > launch.most || parts[tile] != (1 << count) - 1) refuse("the number of pieces");
  }
  if (longest - shortest > (launch.pieces ? 1 : groups / split)) refuse("shares are not even");
  std::printf("right: %s\n", launch.title);
}

template <int kN, int kK, int kBlockM, int kBlockN, int kSplitK>
void parts(const char* title, int rows, int ctas, Shares shares) {
  const int m_tiles = (rows + kBlockM - 1) / kBlockM;
  const auto of = [=](int cta) {
    return EveryNthPart<GemmProblem<kN, kK>, Tile<kBlockM, kBlockN>, kSplitK>{cta, ctas, m_tiles, shares};
  };
  walk({title, rows, kN, kK, kBlockM, kBlockN, kSplitK, ctas, kSplitK, false, [=](int cta) { return of(cta).groups(); },
        [=](int cta, int place) { return of(cta).from(place); }, [](const TileCoordinates&) { return kSplitK; }});
}

template <int kN, int kK, int kBlockM, int kBlockN>
void pieces(const char* title, int rows, int ctas, Shares shares, int most) {
  const int m_tiles = (rows + kBlockM - 1) / kBlockM;
  const auto of = [=](int cta) {
    return ShareOfLine<GemmProblem<kN, kK>, Tile<kBlockM, kBlockN>>{cta, m_tiles, shares};
  };
  walk({title, rows, kN, kK, kBlockM, kBlockN, 1, ctas, most, true, [=](int cta) { return of(cta).groups(); },
        [=](int cta, int place) { return of(cta).from(place); },
        [=](const TileCoordinates& tile) { return of(0).pieces(tile); }});
}

}  // namespace

int main() {
#include "schedules.inc"
  return 0;
}
