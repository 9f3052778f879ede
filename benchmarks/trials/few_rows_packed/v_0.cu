#define PRODUCT 0
#include "variants.inc"
