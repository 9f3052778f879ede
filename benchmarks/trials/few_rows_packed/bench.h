#pragma once
#include <functional>
#include <string>
#include <vector>

#include "packed.cuh"

struct Variant {
  std::string name;
  std::function<void(const lazy::ops::cuda::step::Packed&, cudaStream_t)> run;
  int tile = 0;            // rows of x a block
  bool weighs = false;     // run_pack comes in front, and is counted
  bool packed_x = false;   // x is packed already
  bool can_pack_y = false;
};
// Of product 0 q/k/v to pages, 1 output, 2 gate/up, 3 down.
void add_0(std::vector<Variant>&);
void add_1(std::vector<Variant>&);
void add_2(std::vector<Variant>&);
void add_3(std::vector<Variant>&);
